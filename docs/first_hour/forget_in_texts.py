"""The classifier of Hugging Face forgets three people, from Python."""

from texts import examples, test, trainer
from transformers import BertForSequenceClassification

import spotlessnet as sn

before = BertForSequenceClassification.from_pretrained("bert")
x, y, _ = examples()
result = sn.unlearn(before, (x, y), forget=range(21, 30), init="bert-init", trainer=trainer, test=test())
result.save_pretrained("bert-forgot")

inputs, answers = test()
after = BertForSequenceClassification.from_pretrained("bert-forgot")
for name, network in {"before": before, "after": after}.items():
    print(f"{name}: {(network.eval()(**inputs).logits.argmax(1) == answers).double().mean():.1%} on test data")
