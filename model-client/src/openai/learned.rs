//! What a server accepts, learned from what it refused.

use std::sync::{Mutex, PoisonError};

use query_engine::ports::ModelError;

use crate::error;

/// A refusal of a field's name costs nothing and is repaired at once; there are few fields.
const TRIES: usize = 4;

/// How requests are spelt for this server, as far as it has said.
#[derive(Debug)]
pub(super) struct Learned<S>(Mutex<S>);

impl<S: Clone> Learned<S> {
    pub(super) fn new(shape: S) -> Self {
        Self(Mutex::new(shape))
    }

    pub(super) fn shape(&self) -> S {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends in this shape, and in a repaired one as often as `repair` knows one; remembers what was accepted.
    pub(super) async fn send<T, F: Future<Output = Result<T, ModelError>>>(
        &self,
        mut shape: S,
        send: impl Fn(S) -> F,
        repair: impl Fn(&S, &ModelError) -> Option<S>,
    ) -> Result<T, ModelError> {
        for _ in 0..TRIES {
            match send(shape.clone()).await {
                Ok(accepted) => {
                    *self.0.lock().unwrap_or_else(PoisonError::into_inner) = shape;
                    return Ok(accepted);
                }
                Err(error) => shape = repair(&shape, &error).ok_or(error)?,
            }
        }
        Err(error::malformed("the server refuses one spelling of the request after another"))
    }
}
