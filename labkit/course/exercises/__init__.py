"""How answers to the challenges are tried out: one module each, with `check(answer, bench)`."""
