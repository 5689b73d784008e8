"""Practice: from a log of two models' answers to a policy that decides for new inputs.

Run it with: python examples/fit_a_trace.py
"""

import numpy as np

import ttamer as tt

# A log of 4,000 inputs: how sure each model was, and whether it was right. Yours comes from a file:
# trace = tt.Trace.read("trace.parquet", cascade="cascade.toml")
generator = np.random.default_rng(0)
easy = generator.random(4000)
confidence = np.column_stack([easy, 0.5 + 0.5 * easy]) + 0.1 * generator.standard_normal((4000, 2))
correct = generator.random((4000, 2)) < np.column_stack([0.4 + 0.6 * easy, 0.8 + 0.2 * easy])
spec = tt.CascadeSpec.of({"small": 1.0, "large": 10.0})
trace = tt.Trace(spec, confidence, correct=correct)

fit_rows, test_rows = trace.split(0.5, seed=0)
ladder = tt.fit(fit_rows)
print(ladder)

for tradeoff in (0.5, 0.95, 0.97, 0.99):
    result = tt.evaluate(ladder.at(tradeoff), test_rows)
    print(f"tradeoff {tradeoff:4}: error {result.error:.1%}, cost {result.cost:5.2f}")

turn = ladder.at(0.97).session()
while turn.next is not None:
    sure = {"small": 0.35, "large": 0.9}[turn.next]  # the model's confidence on this input
    print(f"ask {turn.next}, {sure:.0%} sure")
    turn.observe(confidence=sure)
print(f"return the answer of {turn.answer}: {turn.explain().why}")
