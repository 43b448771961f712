// SPDX-License-Identifier: GPL-2.0-or-later

//! The journal writes each agent's totals to the state file, so that they outlive the daemon. They do not outlive the
//! host: the file is in `$PCP_RUN_DIR`.
//!
//! The file has a header with the sums of expired agents and a few numbers (`header`), then a [`record`] for each
//! agent, all of one length. The process that holds the lock on the file is the one pmdanixl of this host that drains
//! rings. `file` opens the file, `records` reads it at the start, and [`Journal`] writes it.
//!
//! The file may be missing or break at any time. Callers commit, and ask whether totals are persistent
//! ([`Journal::is_persistent`]). The journal deals with failures of the file itself: it logs them once, and
//! [`Journal::check`] re-creates the file. Until then totals are in memory only. Begin with [`Journal::commit`] and
//! `commit`. This module must not know how rings are read.

mod commit;
mod file;
mod header;
pub mod record;
mod records;
pub use header::{ConfigTimes, ExpiredTotals, config_times};
pub use records::{RecordId, StateContents, boot_id};

use crate::base::file::clock;
use crate::entry::{Entry, Name};
use crate::procfs::facts::Facts;
use crate::shm::FileShortened;
use crate::store::StoreId;
use nix::unistd::{Uid, geteuid};
use records::Records;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

/// The state file of this daemon. The default has no file. Ids of records of a file that is gone have no effect.
#[derive(Debug, Default)]
pub struct Journal {
    path: PathBuf,
    /// Uid of the user that opened the file, and as which the next daemon starts. This process may have changed its
    /// user since.
    opened_by: u32,
    /// The open file, opened before the user was changed. `None` if it could not be opened.
    file: Option<File>,
    /// The mapped file. `None` if totals are in memory only.
    records: Option<Records>,
    /// See [`Journal::stores_until`]. The file has it too.
    stores_until: (i64, i64),
    /// True if all contents of the file are known here.
    is_ours: bool,
    /// Why the last attempt to open or re-create the file failed. `None` if it did not.
    failure: Option<String>,
    /// True if the file could not grow for the last new agent.
    is_full: bool,
}

impl Journal {
    /// Opens or creates the file. If that fails, [`Journal::start`] tries again and returns the error.
    #[must_use]
    pub fn open(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            opened_by: geteuid().as_raw(),
            file: file::open(path).ok(),
            ..Self::default()
        }
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A duplicate of the file's descriptor, if the file is open.
    #[must_use]
    pub fn descriptor(&self) -> Option<File> {
        self.file.as_ref()?.try_clone().ok()
    }

    /// Locks the file, reads its contents, and writes it from here on. Returns `None` while another process has the
    /// lock. A file that cannot be used is overwritten.
    ///
    /// # Errors
    /// The file cannot be opened, locked, read, grown or mapped. Totals are in memory only until [`Journal::check`] has
    /// re-created the file.
    pub fn start(&mut self) -> io::Result<Option<StateContents>> {
        let found = self.begin()?;
        let until = self.run(|records| records.head(header::stores_until));
        self.stores_until = until.unwrap_or_default();
        Ok(found)
    }

    fn begin(&mut self) -> io::Result<Option<StateContents>> {
        let locked = self.lock_and_read();
        self.failure = locked.as_ref().err().map(io::Error::to_string);
        let Some((records, found)) = locked? else {
            return Ok(None);
        };
        (self.records, self.is_ours) = (Some(records), true);
        Ok(Some(found))
    }

    fn lock_and_read(&mut self) -> io::Result<Option<(Records, StateContents)>> {
        loop {
            let file = match self.file.take() {
                Some(file) => file,
                None => file::open(&self.path)?,
            };
            let file = self.file.insert(file);
            let locked = Records::lock_and_read(file.try_clone()?)?;
            // The process that had the lock may have re-created the file and locked the new one.
            if locked.is_none() || file::is_at(file, &self.path) {
                return Ok(locked);
            }
            self.file = None;
        }
    }

    /// Re-creates the file if it was removed, replaced or truncated, or could not be opened. A file that the next start
    /// would reject is not written until its rights are corrected. Returns true if the file was re-created: it has no
    /// agents then, and the caller has to write all of them to it.
    pub fn check(&mut self) -> bool {
        let in_place = self.file.as_ref();
        let in_place = in_place.filter(|file| file::is_at(file, &self.path));
        let fault =
            in_place.and_then(|file| file::fault(file, &self.path, Uid::from_raw(self.opened_by)));
        let is_in_place = in_place.is_some();
        let failure_before = self.failure.clone();
        if let Some(records) = &self.records {
            match (is_in_place, fault, records.is_whole()) {
                (true, None, true) => return false,
                (true, None, false) => self.close("was truncated"),
                (true, Some(fault), _) => self.close(fault),
                (false, ..) => self.close("was removed or replaced"),
            }
        }
        if let Some(fault) = fault {
            self.failure = Some(fault.into());
            return false;
        }
        let made = self.re_create(is_in_place);
        self.failure = made.err().map(|err| err.to_string());
        let path = self.path.display();
        match &self.failure {
            None => tracing::info!("{path}: state file re-created; totals are persistent again"),
            failure if *failure == failure_before => {}
            Some(failure) => tracing::warn!(
                "{path}: {failure}; the state file cannot be re-created, which is tried again every ten seconds"
            ),
        }
        self.failure.is_none()
    }

    fn re_create(&mut self, is_in_place: bool) -> io::Result<()> {
        match &self.file {
            // All contents are known here, and newer.
            Some(file) if is_in_place && self.is_ours => file.set_len(0)?,
            // The lock is still held, and would prevent a second opening from locking the file.
            Some(_) if is_in_place => {}
            _ => (self.file, self.is_ours) = (None, false),
        }
        let found = self.begin()?;
        let found = found.ok_or_else(|| io::Error::other("locked by another pmdanixl"))?;
        if let Some(why) = found.rejection {
            tracing::warn!("{}: {why}", self.path.display());
        }
        // Totals of another daemon must not be counted a second time here.
        if !found.records.is_empty() {
            (self.records, self.is_ours) = (None, false);
            return Err(io::Error::other(
                "it has totals of an earlier run: remove it to keep what is counted now, or run ./Install to continue with those totals",
            ));
        }
        self.write_stores_until();
        Ok(())
    }

    /// Goes on without the state file, and logs why.
    fn close(&mut self, why: &str) {
        self.records = None;
        let path = self.path.display();
        tracing::error!(
            "{path}: {why}; totals begin at zero after a restart of pmdanixl, unless the state file can be re-created"
        );
    }

    /// True if the file can be opened and is not empty. If [`Journal::start`] has failed, its totals may still be read
    /// later.
    #[must_use]
    pub fn has_totals(&self) -> bool {
        let file = self.file.as_ref();
        file.is_some_and(|file| file.metadata().map_or(true, |meta| meta.len() > 0))
    }

    /// True if the state file has a record for each of this number of agents, so that a restart does not lose what is
    /// counted now.
    #[must_use]
    pub fn is_persistent(&self, agents: usize) -> bool {
        let records = self.records.as_ref();
        records.is_some_and(|records| records.used() == agents)
    }

    /// Creates a record for a new agent. Returns `None` if there is no file, the file cannot grow, or the names of the
    /// agent are too long.
    pub fn create(&mut self, name: &Name, entry: &Entry) -> Option<RecordId> {
        let records = self.records.as_mut()?;
        if !record::fits(name) {
            let path = name.directory.join(&name.raw);
            tracing::debug!(
                "agent {path:?}: its name is too long for the state file; its totals do not survive a restart"
            );
            return None;
        }
        let was_full = self.is_full;
        let created = records.create(name, entry);
        self.is_full = created.is_err();
        match &created {
            Err(err) if !was_full => tracing::warn!(
                "the state file cannot grow: {err}; totals of new agents do not survive a restart until it can"
            ),
            _ => {}
        }
        created.ok()
    }

    /// True if the file could not grow for the last new agent.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Commits the entry of an agent with one store: a kill from there on does not lose it.
    pub fn commit(&mut self, record: Option<RecordId>, entry: &Entry) {
        self.write(record, |words| record::replace(words, entry));
    }

    /// Notes that the slots of the last batch were released.
    pub fn note_released(&mut self, record: Option<RecordId>) {
        self.write(record, record::set_released);
    }

    /// Writes the labels and process facts of an agent, or removes them.
    pub fn set_facts(&mut self, record: Option<RecordId>, facts: Option<&Facts>) {
        self.write(record, |words| record::set_facts(words, facts));
    }

    /// Writes the instance id of an agent.
    pub fn set_id(&mut self, record: Option<RecordId>, id: u32) {
        self.write(record, |words| record::set_id(words, id));
    }

    /// Reads the entry of an agent. `None` if it has no record, or a damaged one.
    #[must_use]
    pub fn entry(&self, record: Option<RecordId>) -> Option<Entry> {
        let read = self.records.as_ref()?.words(record?, record::read);
        Some(read.ok()?.ok()??.entry)
    }

    /// Adds the totals of an agent to those of expired agents, and frees its record if it has one.
    pub fn expire(&mut self, record: Option<RecordId>, entry: &Entry) {
        self.run(|records| {
            let (mut sums, _) = records.head(header::expired)?;
            sums.add(entry);
            let freed = record.map(|id| id.0 as u64);
            records.head(|words| header::set_expired(words, &sums, freed))?;
            if let Some(id) = record {
                records.free(id)?;
                records.head(|words| header::set_expired(words, &sums, None))?;
                let _ = records.shrink();
            }
            Ok(())
        });
    }

    /// The sums of expired agents. `None` without a state file.
    pub fn expired(&mut self) -> Option<ExpiredTotals> {
        self.run(|records| Ok(records.head(header::expired)?.0))
    }

    /// Replaces the sums of expired agents.
    pub fn set_expired(&mut self, sums: &ExpiredTotals) {
        self.run(|records| records.head(|words| header::set_expired(words, sums, None)));
    }

    /// A number above all instance ids that were given, or 0 if none was written.
    pub fn next_id(&mut self) -> u32 {
        self.run(|records| records.head(header::next_id))
            .unwrap_or(0)
    }

    /// Writes the number above all instance ids that were given.
    pub fn set_next_id(&mut self, next: u32) {
        self.run(|records| records.head(|words| header::set_next_id(words, next)));
    }

    /// Notes that the record of an agent is about to lose the reading of a store.
    pub fn give_up_store(&mut self, id: StoreId) {
        let made = id.made().unwrap_or_else(clock);
        self.stores_until = self.stores_until.max(made);
        self.write_stores_until();
    }

    /// When the newest store was made that no record has any more: seconds and nanoseconds. Zeros: there is none.
    #[must_use]
    pub fn stores_until(&self) -> (i64, i64) {
        self.stores_until
    }

    fn write_stores_until(&mut self) {
        let until = self.stores_until;
        self.run(|records| records.head(|words| header::set_stores_until(words, until)));
    }

    /// Writes when the configuration was last read, and when one was last rejected.
    pub fn set_config_times(&mut self, times: ConfigTimes) {
        self.run(|records| records.head(|words| header::set_config_times(words, times)));
    }

    fn write(&mut self, record: Option<RecordId>, write: impl FnOnce(&[AtomicU64])) {
        if let Some(record) = record {
            self.run(|records| records.words(record, write));
        }
    }

    fn run<T>(&mut self, run: impl FnOnce(&mut Records) -> Result<T, FileShortened>) -> Option<T> {
        let done = run(self.records.as_mut()?);
        if done.is_err() {
            self.close("was truncated");
        }
        done.ok()
    }
}

#[cfg(test)]
mod tests;
