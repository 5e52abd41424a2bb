"""Operations on tensors: measure, fit, decide, apply, code, and files."""
