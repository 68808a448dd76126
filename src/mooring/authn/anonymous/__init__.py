"""Requests without a credential become `system:anonymous`."""
