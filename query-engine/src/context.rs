//! What of a conversation is sent, how full the window is, and how history is made smaller.

pub mod accounting;
pub mod autocompact;
pub mod boundary;
pub mod cache;
pub mod cache_break;
pub mod microcompact;
mod pairs;
pub mod prefix;
pub mod snip;
pub mod tool_result_budget;
pub mod view;
pub mod weight;

/// The steps that make a conversation smaller, cheapest and most reversible first (spec 3.2). New steps
/// are members of [`STACK`] and arms where the driver carries a step out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Results that were not sent yet are cut to head and tail.
    ToolResultBudget,
    /// Results that cannot matter any more lose their body.
    Snip,
    /// Old results of tools that can be run again are put away.
    Microcompact,
    /// Old history becomes a summary.
    Autocompact,
}

/// When a step may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActsOn {
    /// On what no provider has seen: at any time.
    Unsent,
    /// On what was sent: only at a declared break.
    Sent,
}

/// The order.
pub const STACK: &[Step] = &[Step::ToolResultBudget, Step::Snip, Step::Microcompact, Step::Autocompact];

impl Step {
    /// The name in a boundary.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ToolResultBudget => "tool_result_budget",
            Self::Snip => "snip",
            Self::Microcompact => "microcompact",
            Self::Autocompact => "autocompact",
        }
    }

    /// When it may act.
    pub const fn acts_on(self) -> ActsOn {
        match self {
            Self::ToolResultBudget => ActsOn::Unsent,
            Self::Snip | Self::Microcompact | Self::Autocompact => ActsOn::Sent,
        }
    }
}
