-- The names of lanes whose jobs waited together. Needs no other part.

-- A lane of jobs that waited for one thing has the name of their own lane, with \2 and what they waited for in it. Only jobs in its list, and in
-- leases, are in it. A job that comes back goes to its own lane, to a place before those of all jobs that never left the list, as any job
-- that was claimed has one: places in two lanes cannot be compared.
local BEFORE = 562949953421312  -- 2^49: more than there are places

-- The own lane and the place of a job of whatever lane.
local function own_place(lane, seq)
  local cut = string.find(lane, '\2', 1, true)
  if not cut then return lane, seq end
  local limits = string.find(lane, '\1', 1, true)
  return sub(lane, 1, cut - 1) .. (limits and sub(lane, limits) or ''), seq - BEFORE
end
