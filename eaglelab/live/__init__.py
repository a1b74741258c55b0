"""A running SGLang or vLLM server, asked over HTTP."""
