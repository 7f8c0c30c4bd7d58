"""All mutants, and the settings that they are planted in."""

from __future__ import annotations

from tests.verify.backward_mutants import BACKWARD
from tests.verify.feature_mutants import FEATURES
from tests.verify.forward_mutants import FORWARD

MUTANTS = FORWARD + FEATURES + BACKWARD
SETTINGS = {str(mutant.setting): mutant.setting for mutant in MUTANTS}
