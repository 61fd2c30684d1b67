-- Forget what says nothing any more: locks of jobs that are gone, buckets that are full, pauses that are over.
-- KEYS: a queue, or the home of limits.  ARGV: 1 clock, 2… where to go on in locks, buckets, pauses of tenants, of tasks, of queues; '-': done
-- Answer: where to go on in each.
local g, now = KEYS[1], clock(ARGV[1])

local function lock_says(known) return where(sub(known, 17), sub(known, 1, 16)) end
local function bucket_says(bucket, key)
  local rule = rule_of(c('HGET', g .. RULES, key) or c('HGET', g .. RULES, match(key, '^([^:]*)')))
  local units, at = read('>dd', bucket)
  return rule and rule.rate and units + rule.rate * (now - at) / 1000000 < rule.burst
end
local function pause_says(record) return pause_of(record, now) end

local answer = {}
for i, kind in ipairs({{LOCKS, lock_says}, {BUCKETS, bucket_says}, {PAUSED_TENANTS, pause_says}, {PAUSED_TASKS, pause_says}, {PAUSED_QUEUES, pause_says}}) do
  local at = ARGV[i + 1]
  if at ~= '-' then
    local key, says = g .. kind[1], kind[2]
    local page = c('HSCAN', key, at, 'COUNT', 25)
    for f = 1, #page[2], 2 do
      if not says(page[2][f + 1], page[2][f]) then c('HDEL', key, page[2][f]) end
    end
    at = page[1] == '0' and '-' or page[1]
  end
  answer[i] = at
end
return answer
