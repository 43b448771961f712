//! Who writes a ring or a store: whether a process has it, which one that is, and what is known of it.

pub mod ancestors;
pub mod facts;
pub mod holdups;
pub mod life;
pub mod presence;
pub mod survey;
pub mod writer;
