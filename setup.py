"""What pyproject.toml cannot say: a wheel with shipped kernels is for one platform.

With `--plat-name TAGS`, as tools/dev/wheels.py gives it, a wheel has these platform tags and is
installed where native code belongs.  It is for every Python, as it has no extension module.
Without the option the wheel is `py3-none-any`.
"""

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel


class PlatformWheel(bdist_wheel):
    """A wheel of native libraries that Python loads by ctypes."""

    def finalize_options(self) -> None:
        if self.plat_name:
            self.distribution.has_ext_modules = lambda: True
        super().finalize_options()

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", self.plat_name) if self.plat_name_supplied else super().get_tag()


setup(cmdclass={"bdist_wheel": PlatformWheel})
