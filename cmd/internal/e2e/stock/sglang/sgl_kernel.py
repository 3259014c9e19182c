"""Stand in for SGLang's CUDA kernels: every name of every module exists, and what is called fails."""

import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.4.10"
__path__ = []


class Kernel:
    def __init__(self, name):
        self.name = name

    def __getattr__(self, part):
        return find(self.name, part)

    def __call__(self, *_, **__):
        raise NotImplementedError(self.name)


class Module(types.ModuleType):
    def __getattr__(self, name):
        return find(self.__name__, name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("sgl_kernel.") else None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


def find(owner, name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Kernel(f"{owner}.{name}")


def __getattr__(name):
    return find("sgl_kernel", name)


sys.meta_path.append(Finder())
