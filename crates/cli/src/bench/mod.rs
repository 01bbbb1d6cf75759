//! scratch
#[derive(clap::Subcommand)]
pub enum What {
    /// scratch
    Micro,
}
#[derive(clap::Args)]
pub struct RankOptions {}
pub fn bench(_: What) -> i32 {
    0
}
pub fn rank(_: RankOptions) -> i32 {
    0
}
