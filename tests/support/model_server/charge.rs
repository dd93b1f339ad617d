//! Charges as a model makes them up: any amount of output up to what the request allows, the same in each run of a test.

use sha2::{Digest as _, Sha256};

use super::RecordedRequest;

/// Output tokens from 1 to the request's `max_tokens`, by seed, agent and turn: the order in which requests arrive
/// does not matter.
pub(super) fn output(seed: u64, request: &RecordedRequest) -> u64 {
    let most = request.max_output().unwrap_or(1);
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(request.agent_key.as_bytes());
    hash.update(request.nth.to_le_bytes());
    let digest = hash.finalize();
    let number = digest.iter().take(8).fold(0_u64, |number, byte| (number << 8) | u64::from(*byte));
    1 + number % most.max(1)
}
