"""Reading prompts and answers: texts, confidences and signals; nothing here calls a node."""
