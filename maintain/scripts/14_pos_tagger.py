"""Part-of-speech tagger: BiLSTM over padded sentences, with per-tag accuracy."""
# bottleneck: host
# cause: python
# half: tune
# costs 53 % of the loop

import torch
import torch.nn as nn

torch.manual_seed(11)
torch.set_num_threads(1)

TAGS = ["NOUN", "VERB", "ADJ", "ADV", "PRON", "DET", "ADP", "CONJ", "NUM", "PUNCT"]
VOCAB = 2000
PAD = -100


class Tagger(nn.Module):
    def __init__(self, dim=80):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.lstm = nn.LSTM(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, len(TAGS))

    def forward(self, words):
        return self.out(self.lstm(self.embed(words))[0])


def make_batches(n, batch=32, length=40):
    result = []
    for _ in range(n):
        words = torch.randint(0, VOCAB, (batch, length))
        tags = words % len(TAGS)
        lengths = torch.randint(15, length + 1, (batch,))
        tags[torch.arange(length) >= lengths.view(-1, 1)] = PAD
        result.append((words, tags))
    return result


def accuracy_per_tag(logits, tags):
    right = dict.fromkeys(TAGS, 0)
    count = dict.fromkeys(TAGS, 0)
    predictions = logits.argmax(-1)
    for i in range(tags.size(0)):  # CAUSE
        for j in range(tags.size(1)):  # CAUSE
            if tags[i, j] == PAD:  # CAUSE
                continue
            name = TAGS[tags[i, j]]  # CAUSE
            count[name] += 1  # CAUSE
            if predictions[i, j] == tags[i, j]:  # CAUSE
                right[name] += 1  # CAUSE
    return {t: right[t] / max(1, count[t]) for t in TAGS}


batches = make_batches(40)
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)
loss_fn = nn.CrossEntropyLoss(ignore_index=PAD)

for epoch in range(5):
    for words, tags in batches:
        optimizer.zero_grad()
        logits = model(words)
        loss = loss_fn(logits.view(-1, len(TAGS)), tags.view(-1))
        loss.backward()
        optimizer.step()
        acc = accuracy_per_tag(logits, tags)  # CAUSE
    scheduler.step()
    print("epoch", epoch, "loss", loss.item(), "NOUN", acc["NOUN"], "VERB", acc["VERB"])
