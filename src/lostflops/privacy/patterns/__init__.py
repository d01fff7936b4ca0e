"""The expressions that find what identifies: values, secrets in commands, machines and people."""
