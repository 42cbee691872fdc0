if __name__ != "engine.tools":
    raise ImportError(f"import engine.tools, not {__name__}: two copies would mean two registries")
