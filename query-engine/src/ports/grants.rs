//! Leave to spend.

use async_trait::async_trait;

/// A call that is about to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedCall {
    /// The model asked, `provider/name`.
    pub model: String,
    /// The estimate of its input, in tokens.
    pub input_tokens: u64,
    /// The most output it would ask for, in tokens.
    pub max_tokens: u64,
}

/// Leave to make a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Grant {
    /// With at most this many tokens of output.
    Call {
        /// Tokens.
        max_tokens: u64,
    },
    /// No: this budget is used up.
    Spent {
        /// Which.
        budget: String,
    },
}

/// Leave to spend from what several agents share (spec 10.1), one call at a time. What a call used is in the records
/// before the next is asked for: a call that left none was not charged.
#[async_trait]
pub trait Grants: Send + Sync {
    /// Whether there is a cap, so that a call asks for little output at first.
    fn is_capped(&self) -> bool;

    /// Waits until the call may be made, or never can be. Dropping the future takes the question back.
    async fn grant(&self, call: &PlannedCall) -> Grant;
}

/// No cap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unlimited;

#[async_trait]
impl Grants for Unlimited {
    fn is_capped(&self) -> bool {
        false
    }

    async fn grant(&self, call: &PlannedCall) -> Grant {
        Grant::Call { max_tokens: call.max_tokens }
    }
}
