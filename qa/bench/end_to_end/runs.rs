// SPDX-License-Identifier: GPL-2.0-or-later

//! Results of several runs of a measurement: their median, range and deviation.

use super::Extent;

/// Results of the runs, in their order.
#[derive(Clone, Debug)]
pub struct Runs(Vec<f64>);

impl Runs {
    /// Number of runs.
    pub fn count(extent: Extent) -> usize {
        extent.of(5, 2)
    }

    /// Results of this many runs.
    pub fn of(count: usize, run: impl FnMut() -> f64) -> Self {
        std::iter::repeat_with(run).take(count).collect()
    }

    /// Median of all results.
    pub fn median(&self) -> f64 {
        self.sorted()[self.0.len() / 2]
    }

    /// Ratios to the results of another measurement, run by run.
    pub fn ratios(&self, other: &Self) -> Self {
        self.0.iter().zip(&other.0).map(|(a, b)| a / b).collect()
    }

    /// Median and range if there are several, with so many digits after the point.
    pub fn shown(&self, digits: usize) -> String {
        self.with_range(&format!("{:.digits$}", self.median()), digits)
    }

    /// Median in bold, and range if there are several, with so many digits after the point.
    pub fn bold(&self, digits: usize) -> String {
        self.with_range(&format!("**{:.digits$}**", self.median()), digits)
    }

    fn with_range(&self, median: &str, digits: usize) -> String {
        match &self.sorted()[..] {
            [least, .., most] => format!("{median} ({least:.digits$} to {most:.digits$})"),
            _ => median.into(),
        }
    }

    /// Mean and standard deviation.
    pub fn deviation(&self) -> (f64, f64) {
        let count = self.0.len() as f64;
        let mean = self.0.iter().sum::<f64>() / count;
        let squares = self.0.iter().map(|one| (one - mean).powi(2)).sum::<f64>();
        (mean, (squares / (count - 1.0)).sqrt())
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

impl FromIterator<f64> for Runs {
    fn from_iter<I: IntoIterator<Item = f64>>(results: I) -> Self {
        Self(results.into_iter().collect())
    }
}
