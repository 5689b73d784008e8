"""OpenAI's and Anthropic's formats: schemas of requests, bodies and events of responses."""
