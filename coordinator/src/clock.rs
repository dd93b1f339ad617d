//! Wall time, read at the edge and passed in.

use swarm_protocol::Timestamp;

/// Now.
pub(crate) fn now() -> Timestamp {
    jiff::Timestamp::now().into()
}
