//! Numbers in a team are not ranks; a team is its rank's only handle of it, and stays on its thread.
#![allow(unused)]

use partage::prelude::*;

fn a_member_is_no_rank(job: &Job, team: &Team) {
    let to: Rank = team.rank();
}

fn a_rank_is_no_root(job: &Job, team: &Team) {
    team.broadcast(&mut [0]).root(job.rank()).run();
}

fn a_member_is_asked_for(team: &Team) {
    team.member(team.rank());
}

fn a_rank_is_translated(job: &Job, team: &Team) {
    team.to_job(job.rank());
}

fn a_team_of_members(team: &Team) {
    team.team([team.rank()]);
}

fn a_team_has_one_handle(team: Team) -> (Team, Team) {
    (team.clone(), team)
}

fn on_another_thread(team: Team) {
    std::thread::spawn(move || team.barrier());
}

fn a_filter_that_is_started(job: &Job, team: &Team) {
    let mut x = [0];
    job.scope(|s| job.broadcast(&mut x).filter(team).start(s).wait());
}

fn a_filter_before_the_destination(job: &Job, team: &Team) {
    job.scatter(&[0]).filter(team).run();
}

fn main() {}
