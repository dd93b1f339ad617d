//! Phase 1: room is made before a request, where it is needed.

use super::{Cancel, Engine};
use crate::{ports::StorageError, transition::StepOutcome};

impl Engine {
    /// Looks at the window before every request.
    pub(super) async fn hygiene(&mut self, _cancel: &Cancel) -> Result<Option<StepOutcome>, StorageError> {
        Ok(None)
    }
}
