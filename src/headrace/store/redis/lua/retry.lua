-- Make finished and scheduled jobs ready now, at their old places: failures and crashes from 0, attempts go on counting.
-- ARGV: 1 clock, 2 '1': afresh, '0': scheduled ones only, as if they were due, 3… ids.
-- Answer: {one digit per id, or per each of the first where lanes are long: 1 moved, 0 left alone, 1: another queue of a cluster is to
--   be told something}.
local p, afresh = KEYS[1], ARGV[2] == '1'
moment = clock(ARGV[1])
local answer, back = {}, {}

-- Whether a dead job has registered undo jobs, and none of them waits for its failure any more.
local function undone(p, id)
  return c('HEXISTS', p .. JOURNAL .. id, cmsgpack.pack({'headrace.undo', 0})) == 1
    and #c('ZRANGEBYLEX', home(p) .. WAITERS .. id, '[f', '(g', 'LIMIT', 0, 1) == 0
end

for a = 3, #ARGV do
  local id = ARGV[a]
  local how, what, lane, seq, no, index = where(p, id)
  local el, note, _
  if how == 's' and not afresh then
    seq, lane, note, el = opened(what)
    c('ZREM', p .. SCHEDULED, id)
  elseif not afresh then
    el = nil
  elseif how == 'k' then
    local _, record = ended_record(what)
    -- A dead job resumes behind its finished steps, unless its undo jobs were let go. The others start afresh.
    if sub(what, 1, 1) ~= 'd' or undone(p, id) then drop_steps(p, id) end
    seq, lane, _, el = opened(record)
    el = restated(el, 0, 0, 0)
    unended(p, id)
    turned(p, id, sub(what, 1, 1), nil)
  elseif how == 's' then
    seq, lane, _, el = opened(what)
    el = restated(el, 0, 0, 0)
    c('ZREM', p .. SCHEDULED, id)
  elseif how == 'l' and done_at(p, no, index) then
    el = restated(what, 1, 0, 0)
    drop_steps(p, id)
    turned(p, id, 'o', nil)
    c('LSET', p .. LEASE .. no, index + 1, '')
    c('HDEL', p .. RESULTS .. no, index)
    c('HDEL', p .. MOVED, id)
  end
  if el then
    lane, seq = own_place(lane, seq)
    c('HSET', p .. LOOSE, id, loose(seq, lane, note, el))
    back[#back + 1] = {lane, seq, id}
  end
  answer[#answer + 1] = el and '1' or '0'
  if walked > WALK then break end
end
come_back(p, back)
return {table.concat(answer), finish_links(home(p)) and 1 or 0}
