"""Theory: describe a cascade, solve it, walk its frontier, and play one input.

Run it with: python examples/solve_a_problem.py
"""

import ttamer as tt

# A router that only informs (it has no answer of its own), and two models behind it.
nodes = (
    tt.Node("router", [float("inf"), float("inf")]),  # states: looks easy, looks hard
    tt.Node("small", [0.05, 0.40]),
    tt.Node("large", [0.02, 0.15]),
)
edges = (
    tt.Edge(None, "router", cost=0.01, probabilities=[0.7, 0.3]),
    tt.Edge("router", "small", cost=0.1, probabilities=[[0.9, 0.1], [0.3, 0.7]]),
    tt.Edge("router", "large", cost=1.0, probabilities=[[0.95, 0.05], [0.6, 0.4]]),
    tt.Edge("small", "large", cost=1.0, probabilities=[[0.97, 0.03], [0.5, 0.5]]),
)
problem = tt.Problem("walk", nodes, edges)

print("tradeoff  expected loss  expected cost")
for policy in tt.solve_ladder(problem, [0.5, 0.8, 0.9, 0.95, 0.99]):
    print(f"{policy.tradeoff:8g}  {policy.expected_loss:13.4f}  {policy.expected_cost:13.4f}")

policy = tt.solve(problem, tradeoff=0.9)
turn = policy.session()
for state in (1, 1, 0):  # looks hard; small is unsure; large is sure
    if turn.next is None:
        break
    asked = turn.next
    turn.observe(state)
    print(f"asked {asked}: {turn.explain().why}")
print(f"answer of {turn.answer} at cost {turn.cost:g}")
