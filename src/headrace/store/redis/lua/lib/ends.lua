-- Jobs that ended by themselves. Needs no other part.

-- A job that ended by itself, not as part of a lease that became history. result: µs to live (-1: as long as the
-- job), its length + 1 (0: none), itself. header: of the lease that it ended in, whose worker and claim are kept.
local NO_RESULT = pack('>dI4', -1, 0)
local function ended(p, id, state, now, record, result, header)
  local whose = header and '\1' .. pack('>d', header[3]) .. header[2] or '\0'
  c('HSET', p .. ENDED, id, state .. pack('>d', now) .. (result or NO_RESULT) .. whose .. record)
  if state == 'd' then c('ZADD', p .. DEAD, now, id) else c('ZADD', p .. NOT_DEAD, now, id) end
  if state ~= 'o' then c('ZADD', p .. ENDED_IDS, 0, id) end
  local ttl = result and read('>I4', result, 9) > 1 and read('>d', result) or -1
  if ttl >= 0 then c('ZADD', p .. SINGLE_RESULT_ENDS, format('%.0f', now + ttl), id) end
end

-- Its state, and what `loose` made.
local function ended_record(record)
  local whose = 22 + max(0, read('>I4', record, 18) - 1)
  return sub(record, 1, 1), sub(record, whose + (byte(record, whose) == 1 and 41 or 1))
end

local function unended(p, id)
  c('HDEL', p .. ENDED, id)
  c('ZREM', p .. DEAD, id)
  c('ZREM', p .. NOT_DEAD, id)
  c('ZREM', p .. ENDED_IDS, id)
  c('ZREM', p .. SINGLE_RESULT_ENDS, id)
end

-- Failures of jobs, behind their earlier ones. {id, failure}…, each id once.
local function remember_failures(p, failures)
  if #failures == 0 then return end
  local ids = {}
  for f = 1, #failures, 2 do ids[#ids + 1] = failures[f] end
  local earlier = c('HMGET', p .. FAILURES, unpack(ids))
  for f = 2, #failures, 2 do
    failures[f] = (earlier[f / 2] or '') .. pack('>I4', #failures[f]) .. failures[f]
  end
  c('HSET', p .. FAILURES, unpack(failures))
end
