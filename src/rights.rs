//! What the daemon may do: the user that it becomes, the capabilities that it keeps, the directories that it keeps to.

pub mod confine;
pub mod privilege;
