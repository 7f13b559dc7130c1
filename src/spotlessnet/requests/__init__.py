"""One request from the asking to the receipt, without any command: the case, what it loads, its plan, its folder."""
