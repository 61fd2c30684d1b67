-- Closed lanes: large runs of jobs that wait for one gate or one job. Needs links and plain.
-- A closed lane is a lane that is in no ring. To open it is to put it into its ring, however many jobs it has. What CLOSED says of it is
-- the need, 'w' while it waits or else why its jobs are being cancelled, the id of its first job, what it waits for, and the queue of that.

local function closed_lane(p, lane)
  local raw = c('HGET', p .. CLOSED, lane)
  if not raw then return nil end
  return {needs = sub(raw, 1, 1), says = sub(raw, 2, 2), first = sub(raw, 3, 18), target = sub(raw, 19, 34), at = sub(raw, 35)}
end

local function write_closed(p, lane, one)
  c('HSET', p .. CLOSED, lane, one.needs .. one.says .. one.first .. one.target .. one.at)
end

-- The lane of jobs of this lane that wait for the same. A lane with limit keys ends with them.
local function closed_name(lane, needs, target)
  local hex = string.gsub(target, '.', function(one) return format('%02x', byte(one)) end)
  local limits = string.find(lane, '\1', 1, true)
  return (limits and sub(lane, 1, limits - 1) or lane) .. '\2' .. needs .. hex .. (limits and sub(lane, limits) or '\2')
end

local function forget_closed(p, lane)
  c('HDEL', p .. CLOSED, lane)
  c('HDEL', p .. FIRST_PLACES, lane)
  c('HDEL', p .. HOLES, lane)
  c('UNLINK', p .. READY .. lane, p .. CLOSED_RUNS .. lane)
end

-- A job, as `where` has found it, leaves its closed lane. Answers whether it was there still.
local function leave_closed(p, lane, id, index)
  local runs, ord = p .. CLOSED_RUNS .. lane, read('>I2', id, 15)
  local run = c('ZREVRANGEBYLEX', runs, '[' .. id .. '\255\255', '[' .. sub(id, 1, 14), 'LIMIT', 0, 1)[1]
  local from, to = read('>I2I2', run or '\255\255\0\0', run and 15 or 1)
  if ord < from or to < ord then return false end
  c('ZREM', runs, run)
  if from < ord then c('ZADD', runs, 0, sub(run, 1, 16) .. pack('>I2', ord - 1)) end
  if ord < to then c('ZADD', runs, 0, sub(id, 1, 14) .. pack('>I2I2', ord + 1, to)) end
  c('LSET', p .. READY .. lane, index, '')
  c('HINCRBY', p .. HOLES, lane, 1)
  bump(p, 'b', -1)
  if c('EXISTS', runs) == 1 then return true end
  local one = closed_lane(p, lane)
  forget_closed(p, lane)
  local entry = string.upper(one.needs) .. one.first
  if one.says ~= 'w' then
    return true
  elseif at_hand(one.at) then
    c('ZREM', home(one.at) .. WAITERS .. one.target, entry .. p .. lane)
  else
    owe(one.at, 'u', one.target, entry, lane)
  end
  return true
end

-- What a closed lane waits for says 'r', 'c' or 'n', as for a job. first: of its jobs when it was closed, which tells it from a later lane of its name.
local function heard_closed(p, lane, first, says)
  local one = closed_lane(p, lane)
  if not one or one.first ~= first or one.says ~= 'w' then return end
  if says ~= 'r' then
    one.says = says
    write_closed(p, lane, one)
    todo[#todo + 1] = 'l' .. p .. lane
    return
  end
  local jobs = c('LLEN', p .. READY .. lane) - (c('HGET', p .. HOLES, lane) or 0)
  c('HDEL', p .. CLOSED, lane)
  c('UNLINK', p .. CLOSED_RUNS .. lane)
  bump(p, 'b', -jobs)
  bump(p, 'r', jobs)
  -- A lane takes as many commands as three jobs.
  effort = effort - 2
  activate(p, {lane})
  wake(p)
end

local function uuid(id)
  local hex = string.gsub(id, '.', function(one) return format('%02x', byte(one)) end)
  return sub(hex, 1, 8) .. '-' .. sub(hex, 9, 12) .. '-' .. sub(hex, 13, 16) .. '-' .. sub(hex, 17, 20) .. '-' .. sub(hex, 21)
end

-- The note of a job that is cancelled because its wait says 'c', or 'n': it was never sealed.
local function why_cancelled(says, needs, target)
  if says == 'n' then return 'its group was never completed' end
  if needs == 'f' then return 'not needed: ' .. uuid(target) .. ' is done' end
  return uuid(target) .. ', which it waited for, was cancelled'
end

-- Cancel jobs of a closed lane, as far as the effort of the script goes. Answers whether all are.
local function cancel_closed(p, lane)
  local one = closed_lane(p, lane)
  if not one then return true end
  local list, head, jobs, holes, over = p .. READY .. lane, tonumber(c('HGET', p .. FIRST_PLACES, lane)), 0, 0, false
  local note = why_cancelled(one.says, one.needs, one.target)
  while effort > 0 and not over do
    local els = c('LPOP', list, min(100, effort))
    over = not els
    for i = 1, els and #els or 0 do
      if els[i] == '' then
        holes = holes + 1
      else
        local id, own, seq = sub(els[i], 1, 16), own_place(lane, head + i - 1)
        ended(p, id, 'c', moment, loose(seq, own, note, els[i]))
        turned(p, id, nil, 'c')
        jobs = jobs + 1
      end
    end
    local count = els and #els or 0
    head, effort, followed = head + count, effort - count, followed + count
  end
  bump(p, 'b', -jobs)
  if over then
    forget_closed(p, lane)
  else
    c('HSET', p .. FIRST_PLACES, lane, head)
    if holes > 0 then c('HINCRBY', p .. HOLES, lane, -holes) end
  end
  return over
end
