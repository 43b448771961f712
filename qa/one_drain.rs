//! One drain of one directory with a state file, without pmcd: `one_drain DIRECTORY STATE [step]` prints the values of each
//! agent afterwards. With `step` it stops itself right before and right after the drain, for a tracer.

#[path = "support/kit/mod.rs"]
mod kit;

use kit::Core;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (rings, state) = (Path::new(&arguments[0]), Path::new(&arguments[1]));
    let is_traced = arguments.len() > 2;
    let mut core = Core::on(rings, state, "proc_facts = true");
    core.scan();
    if is_traced {
        ptrace::traceme()?;
        raise(Signal::SIGSTOP)?;
        core.drain_only();
        raise(Signal::SIGSTOP)?;
        return Ok(());
    }
    // The second drain recovers what the first one found.
    core.drain();
    core.drain();
    let [sent, resets, foreign] =
        ["transfer.tx_bytes", "ring.resets", "ring.foreign_reads"].map(|name| core.all(name));
    for (name, bytes) in sent.iter() {
        println!("{name} {bytes} {} {}", resets[name], foreign[name]);
    }
    Ok(())
}
