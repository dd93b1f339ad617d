//! The built `swarm-worker run` against a server and a model that are played here: a run to its end, a death in
//! the middle, a later run, permission, stop.

#[cfg(test)]
mod run {
    mod hidden;
    mod model;
    mod promises;
    mod rig;
}
