-- Store a batch, all or nothing; a batch that is there already changes nothing.
-- First part: what is given, and what keys have made already. Then unique locks, only for batches that have some; then writing.
-- ARGV: 1 clock, 2 the batch's 14 bytes, 3 plan, then one element per job, in the plan's order.
-- plan (msgpack): {keyed, locks, segments of the first queue, of the second…}
--   keyed = {ord, key, digest as hex, ttl in µs, keep in ms (0: for ever)…} by ord
--   locks = {ord, number of its queue from 1, task and name, states as letters, µs since the enqueue of the holder (-1:
--     always), 1: replace…} by ord
--   segments = {lane, from, to, due kind, due…}, due kind 0 now, 1 in so many µs, 2 at, 3 when what it waits for lets it go (the
--     number of the wait, see links.lua), 4 the same of a run that is large enough for a lane, 5 a chain, see lib/chains.lua; a job with a key or a lock is a segment of its own
-- Answer: {'unlisted', mark} on a cluster, if its queue is not on the list (see leaving.py); else {'ok', ord, id…} with the jobs that keys had already made or that hold locks (of an ord that comes twice the
--   last counts), or {'conflict', ord, id}, or {'linked'}: nothing is stored, and the script that knows of links must store it.
local gone = unlisted(KEYS[1])
if gone then return {'unlisted', gone} end
local now = clock(ARGV[1])
local prefix = ARGV[2]
local plan = cmsgpack.unpack(ARGV[3])
local function own(ord) return prefix .. pack('>I2', ord) end

-- Every check before the first write.
local repeated = false
local keyed, locks, queues = plan[1], plan[2], #plan - 2
for q = 1, queues do
  if batch_entry(KEYS[2 * q - 1], prefix) then repeated = true break end
end
local existing, skip, made, fresh, met, refused = {'ok'}, {}, {}, {}, {}, {}
for k = 1, #keyed, 5 do
  local ord, key, digest = keyed[k], keyed[k + 1], keyed[k + 2]
  local known = made[key] or c('GET', key)
  if known and read('>d', known) <= now then known = false end
  if not known then
    known = pack('>d', now + keyed[k + 3]) .. own(ord) .. digest
    fresh[#fresh + 1] = {key, known, keyed[k + 4], ord}
  elseif sub(known, 9, 24) ~= own(ord) then
    if sub(known, 25) == digest then
      skip[ord] = true
      existing[#existing + 1] = ord
      existing[#existing + 1] = sub(known, 9, 24)
      if made[key] then met[#met + 1] = ord met[#met + 1] = sub(known, 9, 24) end
    elseif not repeated then
      return {'conflict', ord, sub(known, 9, 24)}
    end
  end
  made[key] = known
end
