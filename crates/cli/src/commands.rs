//! The commands of the program, one module each.

pub mod bench;
pub mod demo;
pub mod doctor;
pub mod extract;
pub mod jobs;
pub mod keygen;
pub mod keys;
pub mod model;
pub mod params;
pub mod plan;
pub mod predict;
pub mod report;
pub mod shell;
pub mod train;
pub mod ui;
pub mod uploads;
