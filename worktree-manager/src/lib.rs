//! worktree-manager
