"""``POST /v1/decide``: the policy alone, for services that ask the models themselves."""

import pytest


def test_it_decides_as_the_server_itself(serve):
    served = serve(3)

    async def scenario(client):
        for number in range(30):
            prompt, asked = f"prompt {number}", []
            while True:
                body = {"asked": asked, "key": f"r{number}"}
                step = (await client.post("/decide", json=body)).json()
                if step["next"] is None:
                    break
                text, sure = served.models[step["next"]].answer(prompt)
                asked.append({"node": step["next"], "confidence": sure, "prediction": text})
            response = await client.chat(prompt, headers={"x-request-id": f"r{number}"})
            assert response.headers["x-ttamer-path"] == ",".join(one["node"] for one in asked)
            assert response.headers["x-ttamer-answered-by"] == step["answer"]
            assert step["why"]

    served.run(scenario)


def test_it_says_what_the_next_node_costs_and_takes_failures(serve):
    served = serve()
    bodies = ({}, {"asked": [{"node": "small"}]})  # asked, and failed
    first, second = (response.json() for response in served.post("/decide", *bodies))
    assert (first["next"], first["price"], first["answer"]) == ("small", 1.0, None)
    assert (second["next"], second["price"]) == ("large", 12.5)
    assert not served.models["small"].bodies


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"asked": [{"node": "large", "confidence": 0.5}]}, 409),
        ({"asked": [{"node": "small", "confidence": "high"}]}, 400),
        ({"asked": [{"node": "small", "confidence": 1.0}] * 3}, 409),
        ({"ttamer": {"tradeoff": 0.5}}, 400),
        ({"other": 1}, 400),
        ({"asked": [{}] * 2000}, 400),
    ],
)
def test_what_is_not_a_way_through_the_policy_is_refused(serve, body, status):
    (response,) = serve().post("/decide", body)
    assert response.status_code == status


def test_it_takes_an_operating_point_that_the_operator_allows(serve):
    served = serve(serve={"allow": ["tradeoff"]})
    body = {"ttamer": {"tradeoff": 0.0}, "asked": [{"node": "small", "confidence": 0.3}]}
    (response,) = served.post("/decide", body)
    assert (response.json()["next"], response.json()["answer"]) == (None, "small")
