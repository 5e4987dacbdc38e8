"""Learning by doing: experiments whose answer the reader has to find."""
