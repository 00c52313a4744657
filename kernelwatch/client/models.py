"""The documents that the methods of a client return, under one name."""
# ruff: noqa: F403

from kernelwatch.documents.administration import *
from kernelwatch.documents.base import *
from kernelwatch.documents.figures import *
from kernelwatch.documents.regressions import *
from kernelwatch.documents.runs import *
from kernelwatch.documents.studies import *
from kernelwatch.documents.targets import *
from kernelwatch.documents.weekly import *
