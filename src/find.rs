//! Where rings and stores are: which directories are looked through, which files in them may be agents', and what these are called.

pub mod directory;
pub mod discover;
pub mod name;
pub mod scan;
pub mod store;
