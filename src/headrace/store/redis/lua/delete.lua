-- Forget jobs that are not running and in a state that was asked for.
-- ARGV: 1 clock, 2 those states: some of u blocked, s scheduled, w ready, o done, d dead, c cancelled; 3 µs: only jobs that ended
--   by then, '' whenever; 4… ids.
-- Answer: {one digit per id, or per each of the first where lanes are long: 1 deleted, 0 not, 1: another queue of a cluster is to be
--   told something}.
local p, states = KEYS[1], ARGV[2]
moment = clock(ARGV[1])
local by = tonumber(ARGV[3])
local function takes(state, at) return string.find(states, state, 1, true) and (not by or at and tonumber(at) <= by) end
local answer = {}
c('DEL', p)  -- as in settle: an operator must be able to make room on a full server
for a = 4, #ARGV do
  local id = ARGV[a]
  local how, what, lane, _, x, index = where(p, id)
  local gone, before = true, nil
  local done = how == 'l' and done_at(p, x, index)
  if how == 'k' and takes(sub(what, 1, 1), read('>d', what, 2)) then
    unended(p, id)
    before = sub(what, 1, 1)
  elseif how == 'u' and takes('u') then
    if lane then gone = leave_closed(p, lane, id, x) else unblock(p, id, (blocked_of(what))) end
  elseif how == 's' and takes('s') or how == 'b' and takes('w') then
    local _, whose = opened(what)
    if how == 's' then c('ZREM', p .. SCHEDULED, id) else leave_back(p, whose, id) end
    c('HDEL', p .. LOOSE, id)
  elseif how == 'w' and takes('w') then
    leave_list(p, lane, x)
    c('HDEL', p .. MOVED, id)
  elseif done and takes('o', done) then
    c('LSET', p .. LEASE .. x, index + 1, '')
    c('HDEL', p .. RESULTS .. x, index)
    c('HDEL', p .. MOVED, id)
    before = 'o'
  else
    gone = false
  end
  if gone then
    -- What is done stays counted as done.
    if before ~= 'o' then turned(p, id, before, 'c') end
    c('HDEL', p .. FAILURES, id)
    c('HDEL', p .. REPORTS, id)
    drop_steps(p, id)
    -- The batch itself is remembered until the next prune: a repeated call must not bring it back.
    local prefix = sub(id, 1, 14)
    if c('HINCRBY', p .. GONE, prefix, 1) >= batch_entry(p, prefix)[1] then c('SADD', p .. EMPTY_BATCHES, prefix) end
  end
  answer[#answer + 1] = gone and '1' or '0'
  if walked > WALK then break end
end
return {table.concat(answer), finish_links(home(p)) and 1 or 0}
