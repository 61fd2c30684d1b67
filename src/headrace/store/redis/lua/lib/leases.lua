-- Leases: their headers, and the places of their jobs.
-- A lease's header is the first element of its list: {token, worker, claimed_at, suspect, cause, 1: other queues may have
-- a part of it, runs…}, a run being lane, place of its first job, jobs, position of its first job in the whole lease.
local RUNS = 7

local function lease_header(p, no) return cmsgpack.unpack(c('LINDEX', p .. LEASE .. no, 0)) end

-- Of the job at an index of this list: its lane, its place in it, its position in the whole lease.
local function run_of(header, index)
  local first = 0
  for r = RUNS, #header, 4 do
    local count = header[r + 2]
    if index < first + count then return header[r], header[r + 1] + index - first, header[r + 3] + index - first end
    first = first + count
  end
end

-- Where in this list a position of the whole lease is; nil: in another queue's.
local function index_of(header, position)
  local first = 0
  for r = RUNS, #header, 4 do
    local from, count = header[r + 3], header[r + 2]
    if position >= from and position < from + count then return first + position - from end
    first = first + count
  end
end

local function place(lane, seq) return lane .. '\0' .. format('%015.0f', seq) end
