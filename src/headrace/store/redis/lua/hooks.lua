-- What scripts that know of links do to the jobs that they move. The others have these names and nothing behind them.
local wait_now, block, block_lane, block_chain, cancel_linked, job_ended, jobs_done, lease_done, suspend, follow_links
