if __name__ != "engine.kernels":
    raise ImportError(f"import engine.kernels, not {__name__}: two copies would mean two registries")
