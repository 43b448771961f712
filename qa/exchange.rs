//! `exchange A B`: has two names change places for ever (renameat2(2)), until its standard input ends; then it says how often.

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::io::Read;
use std::sync::mpsc::{TryRecvError, channel};

fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let [first, second] = &names[..] else {
        eprintln!("usage: exchange A B");
        std::process::exit(2);
    };
    let (open, ended) = channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(open);
    });
    let (first, second) = (first.as_str(), second.as_str());
    let flags = RenameFlags::RENAME_EXCHANGE;
    let exchange = || renameat2(AT_FDCWD, first, AT_FDCWD, second, flags);
    let mut times = 0_u64;
    while ended.try_recv() == Err(TryRecvError::Empty) {
        times += u64::from(exchange().is_ok());
    }
    // An even number of times: each name is what it was.
    if times % 2 == 1 {
        exchange().expect("exchanged once more");
    }
    println!("{times}");
}
