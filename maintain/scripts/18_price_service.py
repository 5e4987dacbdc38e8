"""Learn to rank offers; the features of each batch come from the feature service of the team."""
# bottleneck: host
# cause: waiting
# half: tune
# costs 62 % of the loop

import json
import socket
import socketserver
import threading
import time

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

BATCH = 64
N_STEPS = 150


class FeatureHandler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            ids = json.loads(line)["ids"]
            time.sleep(0.015)
            self.wfile.write((json.dumps([i % 17 / 17 for i in ids]) + "\n").encode())


class FeatureClient:
    def __init__(self, address):
        self.connection = socket.create_connection(address)
        self.reader = self.connection.makefile("r")

    def prices(self, ids):
        request = json.dumps({"ids": ids}) + "\n"
        self.connection.sendall(request.encode())  # CAUSE
        return torch.tensor(json.loads(self.reader.readline()))  # CAUSE

    def close(self):
        self.reader.close()
        self.connection.close()


class Ranker(nn.Module):
    def __init__(self, n_items=5000, dim=128):
        super().__init__()
        self.item = nn.Embedding(n_items, dim)
        self.net = nn.Sequential(
            nn.Linear(dim + 1, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
        )

    def forward(self, ids, prices):
        x = torch.cat([self.item(ids), prices.unsqueeze(1)], dim=1)
        return self.net(x).squeeze(1)


if __name__ == "__main__":
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), FeatureHandler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()

    client = FeatureClient(server.server_address)
    model = Ranker()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    for step in range(N_STEPS):
        ids = torch.randint(0, 5000, (BATCH,))
        prices = client.prices(ids.tolist())  # CAUSE
        clicked = (prices < 0.3).float()
        loss = loss_fn(model(ids, prices), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step:3d} loss {loss.item():.4f}")
    client.close()
    server.shutdown()
    server.server_close()
