"""The signer of certificate requests, and the policy of the operator for what is signed."""
