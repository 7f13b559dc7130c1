"""What the command wrote, read by transformers alone."""

import sys

from texts import test
from transformers import BertForSequenceClassification

inputs, answers = test()
for name, folder in {"before": "bert", "after": sys.argv[1]}.items():
    network = BertForSequenceClassification.from_pretrained(folder).eval()
    print(f"{name}: {(network(**inputs).logits.argmax(1) == answers).double().mean():.1%} on test data")
