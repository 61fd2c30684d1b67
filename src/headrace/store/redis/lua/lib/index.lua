-- The index: what is known of a batch.

local entries = {}

-- What the index says of a batch: {jobs, lane, from, to, place…}
local function batch_entry(p, prefix)
  local key = p .. prefix
  local known = entries[key]
  if known == nil then
    local raw = c('ZRANGEBYLEX', p .. BATCHES, '[' .. prefix, '(' .. prefix .. '\255', 'LIMIT', 0, 1)[1]
    known = raw and cmsgpack.unpack(sub(raw, 15)) or false
    if known then known.raw = raw end
    entries[key] = known
  end
  return known
end

-- So many jobs of a batch are gone: with the last one the batch is, too. Answers whether it is.
local function forget(p, prefix, count)
  local entry = batch_entry(p, prefix)
  if not entry then return end
  if count < entry[1] and c('HINCRBY', p .. GONE, prefix, count) < entry[1] then return end
  c('HDEL', p .. GONE, prefix)
  c('HDEL', p .. NOT_STORED, prefix)
  c('ZREM', p .. BATCHES, entry.raw)
  entries[p .. prefix] = false
  return true
end
