//! What the loop needs from outside: traits that the programs and adapters implement.

mod around;
mod grants;
mod model;
mod tools;
mod wrapped;

pub use self::{
    around::{
        BeforeEnd, Durability, HookAnswer, Hooks, Inbox, Incoming, NoHooks, NoObserver, Observer,
        StorageError, Surroundings, Transcript,
    },
    grants::{Grant, Grants, PlannedCall, Unlimited},
    model::{
        BlockKind, Breakpoint, ClosedBlock, Delta, Model, ModelError, ModelErrorKind, ModelInfo,
        ModelRequest, ModelStream, Offer, Prefix, StreamEvent, ToolSpec,
    },
    tools::{Gate, GateAnswer, Repeats, Spent, Subject, Tool, ToolContext, ToolOutput},
    wrapped::{Around, Wrapped},
};
