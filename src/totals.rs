//! What the events of an agent come to: sums, histograms, and percentiles of the last minute.

pub mod account;
pub mod carry;
pub mod histogram;
pub mod pairing;
pub mod ranges;
pub mod scale;
pub mod slots;
pub mod window;
pub mod windows;
