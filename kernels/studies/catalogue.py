"""All studies by name.  Torch-free."""

from collections.abc import Mapping

from . import s1, s2, s3, s4
from .study import Study

STUDIES: Mapping[str, Study] = {study.name: study for study in (s1.STUDY, s2.STUDY, s3.STUDY, s4.STUDY)}
