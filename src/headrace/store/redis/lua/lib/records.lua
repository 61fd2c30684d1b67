-- Elements and the records around them: jobs outside the lists.

-- The same job after one more attempt (or none), with other counts. Nil keeps a count.
local function restated(el, attempts, failures, crashes, suspect)
  local attempt, f, k, flags = read('>I4I2I2B', el, 17)
  flags = flags - flags % 2 + (suspect and SUSPECT or 0)
  return sub(el, 1, 16) .. pack('>I4I2I2B', attempt + attempts, min(65535, failures or f), min(65535, crashes or k), flags)
    .. sub(el, 26)
end

-- What a job outside the lists needs: its place for life, what was said of it, and itself.
local function loose(seq, lane, note, el)
  return pack('>dI2c0I4', seq, #lane, lane, note and #note + 1 or 0) .. (note or '') .. el
end

-- seq, lane, note or nil, element
local function opened(record)
  local seq, lane, n, at = read('>dI2c0I4', record)
  if n == 0 then return seq, lane, nil, sub(record, at) end
  return seq, lane, sub(record, at, at + n - 2), sub(record, at + n - 1)
end
